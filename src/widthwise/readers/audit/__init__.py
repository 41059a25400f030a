"""`audit`: what is wrong with a model's initialisation, tensor by tensor, found by calling it and looking."""
