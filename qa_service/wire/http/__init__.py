"""HTTP/1.1, and what is spoken over it: Open Inference, TF-Serving's REST, `POST /qa`, the page.

A codec like that of frames: bytes in, typed messages out, and back. Whatever the route, a question
becomes the same `Request`, and an error the same code.
"""
