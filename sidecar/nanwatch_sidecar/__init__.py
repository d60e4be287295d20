"""The sidecar: reads the journal that engines write, and serves it over HTTP.

    server        the process: arguments, signals, exit status
    app           the routes
    open_files    how many files may be followed
    connections   how long a client may keep one, and how many there are
    metrics       what /metrics says; every metric name is here and only here
    collector     the same as one scrape, from pieces that are kept while nothing of them changes
    health        what /health/numeric and /readyz say
    journal_view  the journal as it was at the last poll

It never imports torch, and of nanwatch only the journal and the settings.
"""
