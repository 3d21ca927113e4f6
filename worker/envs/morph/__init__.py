"""Morphogenesis: grow grafts into a host while it trains."""
