"""The four choices that make a fast weight memory: feature map × key scale × update rule × read-out."""
