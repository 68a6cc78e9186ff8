pytest_plugins = ["fixtures.plugin", "fixtures.against"]
