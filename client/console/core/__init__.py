"""What pages stand on: settings, visits, logins, forms, rendering."""
