"""What comes in: questions and wishes from a chat, alerts of Alertmanager."""
