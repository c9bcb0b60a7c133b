"""The same arithmetic as the plain forms beside this folder, in Triton: few launches, nothing wide in memory."""
