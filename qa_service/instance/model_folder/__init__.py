"""A prepared model's folder: its manifest, and the costs that are kept in it."""
