from headrace.loader.workers.messages import read_message as read_message
from headrace.loader.workers.pool import WorkerPool as WorkerPool
