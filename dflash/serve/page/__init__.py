"""The web page of the server, and the endpoint that lists strategies and recoveries."""
