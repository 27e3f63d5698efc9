"""The common start of all processes: settings, secret files, logs and hardening."""
