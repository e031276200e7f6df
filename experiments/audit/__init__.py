"""The pre-flight audit: what is wrong with a launch, said before anything is started."""
