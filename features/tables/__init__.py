"""Tables: files of cells as numbers, with the columns of a model and the encoding that training learned."""
