"""Administration over HTTP: Azure's ATOM API. The console and its JSON come here later."""
