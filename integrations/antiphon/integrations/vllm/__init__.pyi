from .proposer import Proposer as Proposer
from .sent import references_for as references_for
