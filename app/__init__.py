"""The control plane of Lockstep: domain, store, services, HTTP, pages. Never imports torch."""
