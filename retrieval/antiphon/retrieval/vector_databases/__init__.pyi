from .milvus import MilvusIndex as MilvusIndex
from .postgres import PgvectorIndex as PgvectorIndex
from .qdrant import QdrantIndex as QdrantIndex
