"""What is registered about the analysis: the section, what it may not ask for, design and power."""
