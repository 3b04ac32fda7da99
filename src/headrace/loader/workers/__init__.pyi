from headrace.loader.workers.messages import read_message as read_message
from headrace.loader.workers.pool import Due as Due, Unusable as Unusable, WorkerPool as WorkerPool
