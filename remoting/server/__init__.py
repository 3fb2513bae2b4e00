"""The staged server: boss, selectors, codecs and business pools (docs/architecture.md, section 3).

Import the modules, not this package: it stays empty so that one module costs only itself at start-up.
"""
