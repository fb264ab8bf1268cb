"""From a script to files that run it elsewhere: Docker Compose, Helm, KubeRay, SkyPilot.

One frozen `Deployment` says what runs; a writer for each engine makes files of it. The engines do the rest:
there is none here.
"""
