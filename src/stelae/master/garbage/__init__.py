"""Files that nobody needs: what they are, and when they are looked for."""
