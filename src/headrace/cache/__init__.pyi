from headrace.cache.block_store import BlockStore as BlockStore, CacheContent as CacheContent, CacheStats as CacheStats
from headrace.cache.reading import (
    Cache as Cache,
    check_cache as check_cache,
    clear_cache as clear_cache,
    describe_cache as describe_cache,
)
