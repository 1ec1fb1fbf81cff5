"""Programs that use hetero the way its users do; each folder is one of them."""
