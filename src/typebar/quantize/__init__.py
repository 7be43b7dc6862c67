"""Models written anew with fewer bits a weight."""
