"""Vector databases as passage indexes: PostgreSQL with pgvector, Milvus, Qdrant. To add one, add a file here.

Each client library is imported when it is first used.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
