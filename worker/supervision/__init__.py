"""The supervisor process of a device: it claims, starts training processes, relays, ends them. No torch here."""
