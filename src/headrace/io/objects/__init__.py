"""Object stores: S3, GCS, Azure and HTTP, through obstore. Loaded when the first URL comes.

storage    Storage                     how a store is reached; credentials stay out of all words
client     submit, FetchPolicy         requests by one asynchronous client a process, tried again, hedged, counted
forked     ForkedClient                a process that makes the requests of a forked one
paths      RemotePath, Objects         a URL with the methods of a path; what was looked up, and local copies
reader     ObjectReader                ranges of objects, merged into few GETs
           ObjectFile                  an object as a file that is read in order
writer     ObjectWriter                creates, uploads and removes whole objects
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
