"""What a report says, as data: a module a section of it."""
