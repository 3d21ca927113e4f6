"""The control plane's half of each environment family."""
