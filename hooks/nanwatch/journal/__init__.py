"""The one contract between the two halves: append-only files in a folder that both see.

Only the standard library. The engine writes (`writer`), the sidecar reads (`reader`).
"""
