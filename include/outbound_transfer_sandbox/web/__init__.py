"""What people see: the web application and the recipients' pickup pages. Decides nothing that a service decides."""
