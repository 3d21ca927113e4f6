"""What a report looks like: tables, plots, HTML and Markdown."""
