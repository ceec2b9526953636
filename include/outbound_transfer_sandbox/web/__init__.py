"""The web application and the recipients' pickup pages."""
