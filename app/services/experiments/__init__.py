"""Submission of experiments, and the documents and frames that people read of them."""
