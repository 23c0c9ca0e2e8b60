"""What users say in arguments, checked and put into the terms of the model."""
