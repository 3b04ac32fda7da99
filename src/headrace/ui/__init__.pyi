from headrace.ui.app import application as application
from headrace.ui.places import Places as Places
from headrace.ui.rendering import page_of as page_of
from headrace.ui.serving import serve as serve
