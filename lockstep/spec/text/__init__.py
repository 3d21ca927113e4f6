"""From text to plain data and back: reading, what is wrong and how it is told, canonical form, schemas."""
