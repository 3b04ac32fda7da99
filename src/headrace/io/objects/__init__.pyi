from headrace.io.objects.client import FetchPolicy as FetchPolicy, FetchStats as FetchStats
from headrace.io.objects.lookups import remote_path as remote_path
from headrace.io.objects.reader import ObjectReader as ObjectReader, reader_for as reader_for
