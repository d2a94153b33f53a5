"""Code of the user's own: loaded from a command line or an installed package, checked, and fitted into the registries.

`loading` imports, `contract` checks what was registered, `builders` what a builder returns, `derive` states the traits
that an entry leaves out, `trial` runs two samples through model and loss. `recorded` is what a spec says of it all.
"""
