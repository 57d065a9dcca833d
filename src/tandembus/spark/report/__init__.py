"""`tandem report`: a journal as one HTML page, and the tables behind it.

`making` runs the pipelines and collects small tables, `findings` says in a sentence what each of
them shows, `charts` draws them, `page` puts it all into one file that needs no network. The rule:
everything on the page is a row of a table that lies beside it.
"""
