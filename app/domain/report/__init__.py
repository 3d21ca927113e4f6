"""The statistical report: what the analysis concludes and the documents that say so.

``inputs`` (what is handed in), ``build_report`` (the report as strict JSON data) and renderers to
HTML, Markdown and CSV. Verdict sentences come from fixed templates only.
"""
