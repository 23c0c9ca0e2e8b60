"""`python -m stelae.cli`: the command of this very installation, as processes of a cluster start each other."""

from __future__ import annotations

from stelae.cli.app import main

main()
