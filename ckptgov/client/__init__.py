"""The verbs over HTTP: what a command asks of a service instead of catalog and storage.

Promises: an answer is the service's own or an error; whatever else arrives (no connection, half
an answer, a proxy's page, another server's 404) is "could not look", and never "there is none"
(P5). A request is sent again only where doing it twice is doing it once. No proxy is used, no
redirect followed, no answer read past a limit.

Must not know: catalog, storage, configuration files. A launcher starts this for every restart, so
nothing is imported beyond the model, the documents and ``http.client``.
"""
