"""The choices that make softmax attention: positions × span."""
