"""TLS: what is configured (`settings`, `client`), what certificates say (`certificates`, `authority`), and the bytes (`stream`, `contexts`).

Import the modules, not this package: only `stream` and `contexts` bring `ssl`, only `certificates` and `authority` bring
`cryptography`, and a process without TLS needs none of them.
"""
