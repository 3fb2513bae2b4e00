"""What commands stand on: their declaration, results, output, and questions to users."""
