"""HTTP: parse, call one service, render."""
