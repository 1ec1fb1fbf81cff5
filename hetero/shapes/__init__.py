"""Dimension expressions, the guards that hold concrete shapes to declared ones, and what operators demand of them."""
