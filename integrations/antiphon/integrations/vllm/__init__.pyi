from .client import references_for as references_for
from .proposer import Proposer as Proposer
